"""What happens to an accumulator between the matrix cores and global memory."""
