"""TFF's older names, the one place of aliases."""
