"""Compression of client updates and broadcasts: link, error feedback, downlink; codecs/."""
