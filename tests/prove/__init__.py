"""The long proofs: each with a seed and a count, each saying how to repeat what it found."""
