"""From a folder, a hub name or a model in memory to something that can speculate.

`mlx_lm` is imported when a function is called, so that `import speculate` stays quick.
"""

from speculate.loading.adapt import adapt as adapt
from speculate.loading.demo import DEMO_MODELS as DEMO_MODELS
from speculate.loading.demo import demo_prompt as demo_prompt
from speculate.loading.head import load_mtp_head as load_mtp_head
from speculate.loading.load import load as load
from speculate.loading.load import load_demo as load_demo
