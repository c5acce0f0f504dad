// A shared library that is no plugin.
extern "C" int something() { return 1; }
