# What may follow, for bash and for zsh; the tables above are all it reads, so that a TAB starts nothing.

# Sets `verb`: `none` where it may stand, `submit` where none was named. Fails when the line is not ours.
_slurm_rl_find_verb() {
  local at=1
  case ${COMP_WORDS[0]##*/} in
    python*) at=3 ;;
  esac
  [ "$COMP_CWORD" -ge "$at" ] || return 1
  verb=submit
  case " $_slurm_rl_verbs " in
    *" ${COMP_WORDS[$at]} "*) verb=${COMP_WORDS[$at]} ;;
  esac
  [ "$COMP_CWORD" -gt "$at" ] || verb=none
}

# Adds those of the words $3 that begin with $1, with $2 behind; of dotted names what comes before the next dot.
_slurm_rl_add() {
  local word rest last=""
  for word in $3; do
    case $word in "$1"*) ;; *) continue ;; esac
    rest=${word#"$1"}
    case "$rest $word" in " "*.) continue ;; esac  # a table, whose entries are the user's to name
    case $rest in
      *.*) word="$1${rest%%.*}." ;;
      *) word="$word$2" ;;
    esac
    [ "$word" = "$last" ] || COMPREPLY+=("$word")
    last=$word
  done
}

_slurm_rl_add_folders() {
  local folder
  for folder in "$1"*/; do
    if [ -d "$folder" ]; then COMPREPLY+=("$folder"); fi
  done
}

_slurm_rl() {
  local IFS=$' \t\n' line cur before verb flags="" takes="" first="" values=""
  COMPREPLY=()
  _slurm_rl_find_verb || return 0
  line=${COMP_LINE:0:$COMP_POINT}
  cur=${line##*[[:space:]]}
  before=${line%"$cur"}
  before=${before%"${before##*[![:space:]]}"}
  before=${before##*[[:space:]]}
  _slurm_rl_row "$verb"
  case " $_slurm_rl_valued " in
    *" $before "*)
      _slurm_rl_values "$before"
      _slurm_rl_add "$cur" " " "$values"
      [ -n "$values" ] || _slurm_rl_add_folders "$cur"
      return 0 ;;
  esac
  case $cur in
    -*) _slurm_rl_add "$cur" " " "$flags" ;;
    *=*)
      _slurm_rl_values "${cur%%=*}"
      _slurm_rl_add "${cur#*=}" " " "$values"
      # In bash `=` begins a word of its own, unless a user has it otherwise; in zsh it does not.
      if [ -z "$BASH_VERSION" ] || [[ $COMP_WORDBREAKS != *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]/#/${cur%%=*}=}")
      fi ;;
    *)
      case $before in "$verb" | slurm_rl | slurm-rl | */slurm-rl) _slurm_rl_add "$cur" " " "$first" ;; esac
      case $takes in
        runs) _slurm_rl_add_folders "$cur" ;;
        names) _slurm_rl_add "$cur" " " "$_slurm_rl_sections $_slurm_rl_keys $_slurm_rl_plus_groups" ;;
        overrides)
          _slurm_rl_add "$cur" "=" "$_slurm_rl_keys"
          _slurm_rl_add "$cur" "=" "$_slurm_rl_groups"
          case $cur in
            +*) _slurm_rl_add "$cur" "=" "$_slurm_rl_plus_groups $_slurm_rl_tables" ;;
          esac ;;
      esac ;;
  esac
}

# Other modules of Python are for whatever completed them before.
_slurm_rl_python() {
  if [ "${COMP_WORDS[1]} ${COMP_WORDS[2]}" = "-m slurm_rl" ]; then
    _slurm_rl "$@"
  elif [ -n "$_slurm_rl_before" ]; then
    compopt +o nospace
    "$_slurm_rl_before" "$@"
  fi
}

_slurm_rl_zsh() {
  if [[ "${words[2]} ${words[3]}" == "-m slurm_rl" || $service == slurm-rl ]]; then
    _bash_complete -o nospace -o default -F _slurm_rl
  elif (( $+functions[_python] )); then
    _python "$@"
  else
    _default "$@"
  fi
}

if [ -n "$ZSH_VERSION" ]; then
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
  autoload -Uz bashcompinit && bashcompinit
  compdef _slurm_rl_zsh python python3 slurm-rl
else
  # bash-completion, where it is there, loads what it has for python at the first TAB: for us to find, now.
  if declare -F _comp_load > /dev/null; then _comp_load python; elif declare -F _completion_loader > /dev/null; then
    _completion_loader python
  fi
  if [[ $(complete -p python 2> /dev/null) =~ \ -F\ ([^\ ]+) && ${BASH_REMATCH[1]} != _slurm_rl* ]]; then
    _slurm_rl_before=${BASH_REMATCH[1]}
  fi
  complete -o nospace -o default -F _slurm_rl_python python python3
  complete -o nospace -o default -F _slurm_rl slurm-rl
fi
