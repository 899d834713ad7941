"""Programs and libraries of others that speak to the server, each as a user of it would."""
