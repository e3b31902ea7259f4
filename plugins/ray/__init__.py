"""What Ray brings: batches on all nodes of a cluster, and replicas of a server. Nothing here is imported unless asked for."""
