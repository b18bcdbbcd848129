# The targets of hvd, for hvdConfig.cmake (installed) and CMakeLists.txt (in the source tree). Reads HVD_INCLUDE_DIR and
# HVD_USES_MPI, and expects the targets Threads::Threads and, with MPI, MPI::MPI_CXX.
#
# hvd::headers  the headers alone: the program links threads, and defines HVD_WITH_MPI or leaves it to what is on the include path
# hvd::threads  the headers and threads, without MPI
# hvd::mpi      the headers and the MPI that FindMPI finds (MPI_CXX_COMPILER chooses it); only with MPI
# hvd::hvd      hvd::mpi, or hvd::threads without MPI
# hvd::compiled the same in the compiled form; here where HVD_LIBRARY, libhvd's path, is set. CMakeLists.txt builds its own

function(hvd_add_target name with_mpi)
  set(libraries hvd::headers Threads::Threads ${ARGN})
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS HVD_WITH_MPI=${with_mpi}
    INTERFACE_LINK_LIBRARIES "${libraries}")
  # The linker takes hvd's kernels out of a static library because their symbol is asked for.
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set_target_properties(${name} PROPERTIES INTERFACE_LINK_OPTIONS "-Wl,-u,hvd_kernels")
  endif()
endfunction()

if(NOT TARGET hvd::headers)
  add_library(hvd::headers INTERFACE IMPORTED GLOBAL)
  set_target_properties(hvd::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${HVD_INCLUDE_DIR}"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
  hvd_add_target(hvd::threads 0)
  add_library(hvd::hvd INTERFACE IMPORTED GLOBAL)
  if(HVD_USES_MPI)
    hvd_add_target(hvd::mpi 1 MPI::MPI_CXX)
    set_target_properties(hvd::hvd PROPERTIES INTERFACE_LINK_LIBRARIES hvd::mpi)
  else()
    set_target_properties(hvd::hvd PROPERTIES INTERFACE_LINK_LIBRARIES hvd::threads)
  endif()
  if(HVD_LIBRARY)
    add_library(hvd::compiled INTERFACE IMPORTED GLOBAL)
    set_target_properties(hvd::compiled PROPERTIES
      INTERFACE_COMPILE_DEFINITIONS HVD_COMPILED
      INTERFACE_LINK_LIBRARIES "${HVD_LIBRARY};hvd::hvd")
  endif()
endif()
