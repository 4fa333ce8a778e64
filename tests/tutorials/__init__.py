"""Small programs that take the steps of TFF's tutorials, by TFF's names."""
