"""What a scope has to know of torch and its libraries: methods to watch, and code to let by."""
