"""Client sequences: columns and steps outside graphs; gather loops and symbolic datasets inside."""
