"""Several processes: what an implementation does on ranks that torchrun started.

The process that judges is the controller. It starts the ranks once for each number of them, sends
every rank a program, and reads what its calls came to: ``controller`` holds the conversation,
``launch`` the processes, ``worker`` runs in each rank, ``program`` is what they tell each other and
``traffic`` watches collectives.

Nothing here imports torch, which may be absent: torchrun is called as a module in a new process.
"""

from properties.ranks.controller import close_launches, run
from properties.ranks.launch import modules_for
from properties.ranks.program import Kept, Program
from properties.ranks.traffic import Collective

__all__ = ["Collective", "Kept", "Program", "close_launches", "modules_for", "run"]
