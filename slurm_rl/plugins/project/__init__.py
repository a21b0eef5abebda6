"""The project folder of a user: presets, reward and data that train as written."""
