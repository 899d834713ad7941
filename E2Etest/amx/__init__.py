"""AMX in user space: the tests of the engine on the kernels that processors with AMX choose."""
