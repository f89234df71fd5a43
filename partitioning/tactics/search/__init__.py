"""The automatic tactic: a search over what other tactics and single tilings do, judged by cost."""
