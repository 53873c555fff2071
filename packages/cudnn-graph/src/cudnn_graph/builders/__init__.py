"""The node methods of ``cudnn.pygraph``, by kind."""
