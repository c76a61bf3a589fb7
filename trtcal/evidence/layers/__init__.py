"""What an engine's layers show: shares, copies, chains, estimates, findings, and differences."""
