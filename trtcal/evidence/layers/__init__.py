"""What an engine's layers tell: shares, copies, chains, estimates, findings, and differences."""
