"""Power cuts: what a disk may hold afterwards, under a real ext4, and a real kernel that dies in QEMU."""
