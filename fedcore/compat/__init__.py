"""TFF's names, the one place of aliases: what each is here, or what to use instead."""
