"""Secure sums by pairwise masks: Bonawitz et al. 2017, with the sparse neighbour graph of Bell et al. 2020.

| phase | a client sends | the server sends it |
|---|---|---|
| `keys` | two X25519 public keys | the keys of its neighbours |
| `shares` | shares of its two secrets, encrypted for its neighbours | the shares that its neighbours made for it |
| `masked` | its integers plus masks | the survivors: whose masked integers have arrived |
| `survivors` | a signed digest of the survivors | those of its neighbours |
| `unmasking` | for each neighbour a share of one of the neighbour's two secrets | |

A client's mask is the sum of a mask of its own, from a seed, and of a mask shared with each neighbour, which one of the
two adds and the other subtracts. From the shares the server recovers the seeds of clients whose integers arrived, and
the private keys of clients that dropped out after phase `shares`; so it can remove all masks from the sum, and no mask
from a client's integers. A client gives shares only if enough of its neighbours have signed the survivors of which it
was told, so that a server that lies about them gets too few shares. docs/secure-aggregation.md says against whom this
holds.

`settings` holds what the user sets, `terms` the numbers that all parties know, `masked_client` and `masking_server` the
two parties, `signed_messages` the messages between them. `session` runs them in this process, and `secure_partials`
puts a session into a client stage.
"""
