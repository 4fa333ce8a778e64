"""Client stages over a network: clients hold their own data, and the server asks them.

exchange            the protocol that a network implements: sites, an addressed request, a reply
messages            the payloads: facts and arrays, in the format of safetensors
leaves              tensors of a type as arrays of a message
executor            the `ClientsExecutor` of the server
network_runtime     `fc.runtime.network`

The site's side is `fedcore.deployment`. Why it is so: decision 0270.
"""
