"""Work on serialized graphs (GraphDef protobufs) alone: canonical form, validation, analysis, optimisation."""
