"""Operations for the package cudnn, by someone else."""
