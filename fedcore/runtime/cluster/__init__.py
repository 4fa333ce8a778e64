"""The Ray runtime: client stages run by actors of a Ray cluster. Imported by `fc.runtime.ray(...)` only.

| module | subject |
|---|---|
| shipping | pickles in which plans and arrays are names by digest |
| environment | versions, threads and instructions that decide bits |
| worker | the actor: caches by digest, runs slices, opens clients' data |
| members | the cluster's workers: starting, ending, growing |
| executor | the `ClientsExecutor` over the members |
"""
