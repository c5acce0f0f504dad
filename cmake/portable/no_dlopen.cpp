// Replaces the dynamic loader's functions in the static program of telens-cli.
//
// HDF5 calls them to load a plugin for a filter that it does not know. A static program could load
// only libraries of the glibc that it was linked with. HDF5 now reports the filter as missing.
extern "C" {

void* dlopen(const char* /*file*/, int /*mode*/) { return nullptr; }
void* dlsym(void* /*library*/, const char* /*name*/) { return nullptr; }
int dlclose(void* /*library*/) { return 0; }
char* dlerror() {
  static char message[] = "this program loads no libraries";
  return message;
}

}  // extern "C"
