"""Reports of a call: what it ran, what it recorded, what crossed."""
