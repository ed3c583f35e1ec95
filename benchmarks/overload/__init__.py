"""More load than a pod can serve, clients that misbehave, and kills: what each stream gives."""
