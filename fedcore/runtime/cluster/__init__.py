"""The Ray runtime: client stages run by actors of a Ray cluster. Imported by `fc.runtime.ray(...)` only.

| module | subject |
|---|---|
| shipping | pickles in which plans and arrays are names by digest |
| environment | versions, threads and instructions that decide bits |
| messages | messages between the driver and the workers |
| broadcasts | arrays that are broadcast, by digest in the object store |
| worker | the actor: caches by digest, computes and merges runs of slices, opens clients' data |
| members | the cluster's workers: starting, ending, growing |
| executor | the `ClientsExecutor` over the members |
"""
