// A shared library that is not a plugin.
extern "C" int something() { return 1; }
