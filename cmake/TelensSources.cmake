# Distributes the sources of the libraries over object libraries and unity batches.
#
# Folders list their sources with telens_sources() and telens_base_sources(). At the end of the
# configuration this file decides two things from the sources' text, so that no list states them:
#
# - Which sources of libtelens.so do not use LibTorch. They are compiled without LibTorch's include
#   folders. Others use only tensors and operators of LibTorch. They are compiled with
#   core/precompiled_tensor.h, which has half of LibTorch's headers. A wrong guess of the latter costs
#   compile time and nothing else.
# - Which sources can share a translation unit. A file that uses LibTorch costs the compiler some
#   eight seconds, six of them for LibTorch's headers and templates, and a batch pays for these once.
#   Files that declare the same name in an anonymous namespace never share a batch.
#
# CMake runs again after every edit of a listed source, before the build: 0.6 s for the whole tree.
set(TELENS_UNITY_BATCH 12)

# Headers with autograd, modules, process groups, the dispatcher or all operators.
set(TELENS_LIBTORCH_HEADERS
    "^(torch/|ATen/(ATen|Functions|Operators|NativeFunctions|autocast_mode)\\.h|ATen/core/(dispatch/|boxing/|op_registration/|Dict\\.h)|fmt/format-inl\\.h)")

# Any header of LibTorch.
set(TELENS_ANY_LIBTORCH_HEADER "^(torch|ATen|c10|caffe2)/|^fmt/format-inl\\.h")

# telens_includes(<result> <file> <headers>): whether the file, given from the project's folder,
# includes a header that matches the variable named <headers>, directly or through headers of ours.
function(telens_includes result file headers)
  get_property(known GLOBAL PROPERTY "${headers} ${file}")
  if("${known}" STREQUAL "")
    set(known FALSE)
    set_property(GLOBAL PROPERTY "${headers} ${file}" FALSE)  # ends circles
    file(STRINGS "${PROJECT_SOURCE_DIR}/${file}" includes REGEX "^# *include ")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE "^# *include *[<\"]([^>\"]*)[>\"].*" "\\1" header "${include}")
      if(header MATCHES "${${headers}}"
         AND NOT "${headers} ${header}" STREQUAL "TELENS_LIBTORCH_HEADERS torch/version.h")
        set(known TRUE)
      elseif(EXISTS "${PROJECT_SOURCE_DIR}/${header}")
        telens_includes(known "${header}" "${headers}")
      endif()
      if(known)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY "${headers} ${file}" ${known})
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()

# telens_local_names(<result> <file>): the names that the file declares in anonymous namespaces or
# as `static`. A using-declaration gives `name@declaration`: files that repeat it can share a batch,
# files with another declaration of the name cannot. Relies on clang-format, which keeps such
# declarations at the start of a line.
function(telens_local_names result file)
  file(READ "${file}" text)
  string(REPLACE ";" "," text "${text}")
  string(REPLACE "[" "(" text "${text}")
  string(REPLACE "]" ")" text "${text}")
  string(REGEX REPLACE "\n\\(\\([^)\n]*\\)\\) *" "\n" text "${text}")  # attributes
  set(names)
  string(REGEX MATCHALL "\nstatic [^\n]*" declarations "${text}")
  string(FIND "${text}" "\nnamespace {" begin)
  while(NOT begin EQUAL -1)
    math(EXPR begin "${begin} + 12")
    string(SUBSTRING "${text}" ${begin} -1 text)
    string(FIND "${text}" "\n}  // namespace\n" end)
    string(SUBSTRING "${text}" 0 ${end} block)
    string(REGEX MATCHALL "\n[A-Za-z_][^\n]*" found "${block}")
    list(APPEND declarations ${found})
    string(FIND "${text}" "\nnamespace {" begin)
  endwhile()
  foreach(declaration IN LISTS declarations)
    if(declaration MATCHES "^\n(template|public|private|protected|TORCH_|TELENS_|TEST|INSTANTIATE_|using namespace )"
       OR declaration MATCHES "^[^(]*::~?[A-Za-z0-9_]+\\(")
      continue()  # declares nothing, or a member
    elseif(declaration MATCHES "^\nusing ([^=,]*::([A-Za-z0-9_]+)),$")
      list(APPEND names "${CMAKE_MATCH_2}@${CMAKE_MATCH_1}")
    elseif(declaration MATCHES "^\n(struct|class|enum class|enum|union|using|namespace) ([A-Za-z0-9_]+)")
      list(APPEND names "${CMAKE_MATCH_2}")
    elseif(declaration MATCHES "^\n([^(={]*[^A-Za-z0-9_(={])?([A-Za-z0-9_]+) *[(={,]")
      list(APPEND names "${CMAKE_MATCH_2}")
    endif()
  endforeach()
  set(${result} "${names}" PARENT_SCOPE)
endfunction()

# telens_unite(<target> <file>...): has the files of a target compiled in batches, together with
# other files of the same room: the calling folder, or its parent below core/.
function(telens_unite target)
  if(NOT TELENS_UNITY)
    return()
  endif()
  file(RELATIVE_PATH room "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REGEX MATCH "^[^/]+(/[^/]+)?" room "${room}")
  string(MAKE_C_IDENTIFIER "${room}" room)
  foreach(file IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH file)
    set_property(GLOBAL APPEND PROPERTY telens_united "${target}|${room}|${file}")
  endforeach()
endfunction()

# Puts each file that telens_unite() received into the first batch of its target and room that has
# space and none of the file's local names.
function(telens_form_batches)
  get_property(united GLOBAL PROPERTY telens_united)
  foreach(entry IN LISTS united)
    string(REGEX MATCH "^([^|]*)\\|([^|]*)\\|(.*)$" _ "${entry}")
    set(target "${CMAKE_MATCH_1}")
    set(key "${CMAKE_MATCH_1}_${CMAKE_MATCH_2}")
    set(file "${CMAKE_MATCH_3}")
    telens_local_names(names "${file}")
    set(batch 0)
    while(TRUE)
      set(clash FALSE)
      set(members "size_${key}_${batch}")
      if(NOT DEFINED ${members})
        set(${members} 0)
      elseif(${members} EQUAL TELENS_UNITY_BATCH)
        set(clash TRUE)
      else()
        foreach(declared IN LISTS names)
          string(REGEX REPLACE "@.*" "" name "${declared}")
          set(taken "declared_${key}_${batch}_${name}")
          if(DEFINED ${taken} AND NOT ("${declared}" MATCHES "@" AND "${${taken}}" STREQUAL declared))
            set(clash TRUE)
            break()
          endif()
        endforeach()
      endif()
      if(NOT clash)
        break()
      endif()
      math(EXPR batch "${batch} + 1")
    endwhile()
    math(EXPR ${members} "${${members}} + 1")
    foreach(declared IN LISTS names)
      string(REGEX REPLACE "@.*" "" name "${declared}")
      set(declared_${key}_${batch}_${name} "${declared}")
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    set_source_files_properties("${file}" TARGET_DIRECTORY ${target}
                                PROPERTIES UNITY_GROUP "${key}_${batch}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  endforeach()
endfunction()

# telens_base_sources(<file>...): adds sources of the calling folder to libtelens_base.a, the part
# without LibTorch that both the command and libtelens.so contain.
function(telens_base_sources)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  target_sources(telens_base PRIVATE ${ARGN})
  telens_unite(telens_base ${ARGN})
endfunction()

# telens_sources(<file>...): adds sources of the calling folder to libtelens.so. Does nothing in a
# build without LibTorch.
function(telens_sources)
  if(NOT TARGET telens)
    return()
  endif()
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  foreach(file IN LISTS ARGN)
    telens_includes(uses_libtorch "${folder}/${file}" TELENS_ANY_LIBTORCH_HEADER)
    telens_includes(uses_all_of_it "${folder}/${file}" TELENS_LIBTORCH_HEADERS)
    set(target telens_without_libtorch)
    if(uses_all_of_it)
      set(target telens)
    elseif(uses_libtorch)
      set(target telens_on_tensors)
    endif()
    target_sources(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
    telens_unite(${target} "${file}")
  endforeach()
endfunction()

cmake_language(DEFER DIRECTORY "${PROJECT_SOURCE_DIR}" CALL telens_form_batches)
