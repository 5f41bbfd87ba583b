# embed_python(FOLDER OUTPUT): generates OUTPUT, a C++ file that embeds the Python modules of FOLDER for
# hf/python_files.h, at configure time; CMake reruns when a module changes. String literals are split, because compilers
# limit them to 64 KiB.
function(embed_python folder output)
  file(GLOB files CONFIGURE_DEPENDS "${folder}/*.py")
  list(FILTER files EXCLUDE REGEX "/__init__\\.py$")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  set(entries "")
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME)
    file(READ "${file}" text)
    string(LENGTH "${text}" length)
    set(literal "")
    set(begin 0)
    while(begin LESS length)
      string(SUBSTRING "${text}" ${begin} 10000 piece)
      string(APPEND literal "\n   R\"python(${piece})python\"")
      math(EXPR begin "${begin} + 10000")
    endwhile()
    string(APPEND entries "  {\"${name}\",${literal}},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${output}" CONTENT "#include \"hf/python_files.h\"

namespace hero {

const std::vector<std::pair<std::string_view, std::string_view>>& python_files() {
  static const std::vector<std::pair<std::string_view, std::string_view>> files = {
@entries@  };
  return files;
}

}  // namespace hero
" @ONLY)
endfunction()
