"""How a gateway's policy moves the SLA over fifty replicas, simulated."""
