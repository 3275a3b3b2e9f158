"""From a server's speed to dollars a chat, beside the prices of hosted models."""
