"""Training scripts for a CUDA machine, each fault behind a flag. They need torch and nothing else."""
