"""What Ray brings: batches, replicas of a server and layers of a model on a cluster. Ray is imported when it is asked for."""
