"""The rig: what an engine and its plugins are tested with. Ships to plugin authors.

- `conformance`: a test class to inherit from, which shows that a proposer never changes the text.
- `harness`: a small engine with a spy in it, driven between steps where a test wants to look.
- `tiny_models`, `recurrent`, `recurrent_backend`: models that run in milliseconds, one with a recurrent state.
- `torch_attention`: an attention backend that is plainly right, as the oracle for others.
- `proposers`: oracles, random, hostile and self-drafting proposers.
- `spy`, `poison`: record what passes through the hooks; fill what nobody may read with NaN.
- `distribution`: whether verified tokens have the target's distribution.
"""
