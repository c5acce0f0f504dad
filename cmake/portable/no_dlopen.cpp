// Replaces the functions of the dynamic loader in the static program of telens-cli.
//
// HDF5 calls them to load a plugin for an unknown filter. A static program can only load libraries
// that match the glibc it was linked with, so these functions fail and HDF5 reports a missing
// filter.
extern "C" {

void* dlopen(const char* /*file*/, int /*mode*/) { return nullptr; }
void* dlsym(void* /*library*/, const char* /*name*/) { return nullptr; }
int dlclose(void* /*library*/) { return 0; }
char* dlerror() {
  static char message[] = "this program cannot load libraries";
  return message;
}

}  // extern "C"
