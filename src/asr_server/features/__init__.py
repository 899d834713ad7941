"""The features of this server, each in a folder with its code and its tests; `feature_list.py` lists them."""
