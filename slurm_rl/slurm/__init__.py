"""Names by which jobs find their controller. They are a contract: a new name would be unknown to an old snapshot."""
