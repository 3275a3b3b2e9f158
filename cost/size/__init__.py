"""How much memory a model needs and where it fits: the one planner of the project.

Pure arithmetic on shapes; torch is not imported. Whether it is right is tested against the trainer.
"""
