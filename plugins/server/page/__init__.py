"""The page that the server shows in a browser: static files, and the routes that send them."""
