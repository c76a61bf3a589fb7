"""Many runs and many projects: artifact store, costs, dashboard, MLflow, drift, alerts."""
