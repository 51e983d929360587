"""The live page: lists the runs in a folder, shows them as they go, and stops them. It reads run folders only."""
