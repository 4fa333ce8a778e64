"""What a call tells: its report, its recording, and what crossed."""
