"""What a manifest means to a pod: settings, files, volumes, why an engine gives up."""
