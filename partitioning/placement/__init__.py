"""Which mesh axis lies on which level of links, and how sums between devices are carried out."""
