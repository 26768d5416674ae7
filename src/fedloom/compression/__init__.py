"""How updates and broadcasts travel: link, error feedback, downlink, and codecs/."""
