"""The simulator: the engine on a trace, under the paper's rules or those of the live runtime."""
