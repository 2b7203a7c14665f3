"""How an answer is judged where comparing numbers is not enough, one module per topic.

A routing may choose either side of a tie, a centred bias is known up to one constant, a layer hides
how it routed, and an optimum needs a certificate. The properties state what must hold; the modules
here say what follows from it for the numbers at hand.
"""
