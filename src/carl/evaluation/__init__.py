"""How good is the encoder, and how do the prototypes fare?"""
